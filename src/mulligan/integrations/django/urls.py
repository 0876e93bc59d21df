"""URLs of the dashboard: `path("mulligan/", include("mulligan.integrations.django.urls"))`."""

from __future__ import annotations

from mulligan.integrations.django.dashboard import dashboard_urls

app_name = "mulligan"
urlpatterns = dashboard_urls()
