"""Access: API keys, dashboard sessions and status links."""
