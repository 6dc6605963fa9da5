"""Consumer groups: membership, assignment, committed offsets, a reader of a group."""
