"""A worker process without the command line around it."""

import asyncio
import logging
import sys

from mulligan.config import read_settings
from mulligan.storage import open_store
from mulligan.worker.supervisor.main import Supervisor, WorkerOptions
from mulligan.worker.supervisor.runner_process import StderrHandler

logging.basicConfig(
    level="INFO",
    format="%(asctime)s %(levelname)s %(name)s %(message)s",
    handlers=[StderrHandler()],
)
settings = read_settings()
store = open_store(settings.database_url)
store.prepare()
sys.exit(asyncio.run(Supervisor(store, settings, WorkerOptions(app=sys.argv[1])).run()))
