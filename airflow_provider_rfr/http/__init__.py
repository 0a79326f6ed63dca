"""HTTP for sources, webhooks and sinks: deadlines, addresses that may be called, and texts without secrets."""
