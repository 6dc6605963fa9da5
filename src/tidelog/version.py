"""The version of this package.

Owns the number alone: the package itself imports nothing that needs it.
"""

from __future__ import annotations

__version__ = "0.1.0"
