"""Plans of which brokers replicas are on: placement, plans to move them, their cost. Pure."""
