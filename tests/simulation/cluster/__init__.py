"""The parts of the cluster scenario: nodes, store, clients, faults, watchers and the verdict."""
