"""Which entries of the import path Spark's Python workers keep."""

from __future__ import annotations

from tidelog.pipeline.worker_daemon import prefer_package

ZIP = "/venv/site-packages/pyspark/python/lib/pyspark.zip"


def test_the_zip_goes_where_its_package_is_installed() -> None:
    assert prefer_package([ZIP, "/x", "/venv/site-packages"]) == ["/x", "/venv/site-packages"]


def test_the_zip_stays_where_it_is_all_there_is() -> None:
    assert prefer_package([ZIP, "/x"]) == [ZIP, "/x"]
    other = "/opt/spark/python/lib/pyspark.zip"
    assert prefer_package([other, "/venv/site-packages"]) == [other, "/venv/site-packages"]
