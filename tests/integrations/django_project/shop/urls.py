"""URLs of the project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("mulligan/", include("mulligan.integrations.django.urls")),
]
