"""Administrative requests, one file per subject; functions that take a ``Cluster``.

Results per item are returned per item: None for success, otherwise the ``Refused`` itself.
"""
