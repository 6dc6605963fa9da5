"""The audit of a lake: whether it holds what its topics hold. Facts, rules, verdict; no repair."""
