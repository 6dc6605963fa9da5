"""Owns how results look as text and as one HTML page; does not compute them."""
