"""Notifications: events become deliveries to webhooks, e-mail and chats; a delivery is a job."""
