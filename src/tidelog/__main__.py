"""``python -m tidelog`` is ``tidelog``."""

from tidelog.cli.main import main

main()
