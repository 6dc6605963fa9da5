"""Owns whether a lake holds what its topics hold: facts, rules and verdict; does not repair."""
