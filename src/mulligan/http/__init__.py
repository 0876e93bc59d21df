"""The web server: the HTTP API under /api/v1 and the dashboard."""

from mulligan.core.extras import check_extra

check_extra("web", "mulligan.http")
