"""Bridges to other job queues: their failures become jobs of Mulligan, and can be sent again.

A task of the host queue that failed is a job of kind `celery:billing.charge`. Each of its failures
is an attempt, which is claimed and settled like any other. A retry by a person or an operation
sends the task through the host queue again, and the host's own signals report how it ended.
"""
