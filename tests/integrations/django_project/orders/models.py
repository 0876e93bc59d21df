"""Models that tasks change."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """Order of the shop."""

    item = models.CharField(max_length=100)
    shipped = models.BooleanField(default=False)
