"""The order checker: whether each key kept its order while a topic grew and shrank."""
