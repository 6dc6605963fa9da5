"""The parts of the cluster scenario: nodes, store, clients, faults, what is watched and judged."""
