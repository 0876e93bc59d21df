"""A worker process without the command line around it."""

import asyncio
import logging
import sys

from mulligan.config import read_settings
from mulligan.engine.supervisor.main import Options, Supervisor
from mulligan.engine.supervisor.relay import RelayHandler
from mulligan.store import open_store

logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s %(message)s", handlers=[RelayHandler()])
settings = read_settings()
store = open_store(settings.database_url)
store.prepare()
sys.exit(asyncio.run(Supervisor(store, settings, Options(app=sys.argv[1])).run()))
