"""How rows reach upstreams and come back as durable results."""
