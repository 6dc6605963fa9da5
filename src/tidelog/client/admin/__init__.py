"""Administration of a cluster, one file per kind of thing; functions over a ``Cluster``.

What is answered per item comes back per item: None for success, else the ``Refused`` itself.
"""
