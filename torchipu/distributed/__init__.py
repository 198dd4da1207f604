"""Several processes that train together: who they are, what they agree on, and the sums over all their replicas."""
