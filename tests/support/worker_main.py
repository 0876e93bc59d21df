import asyncio, sys, logging
from mulligan.config import read_settings
from mulligan.store import open_store
from mulligan.engine.supervisor.main import Supervisor, Options
logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s %(message)s")
s=read_settings(); st=open_store(s.database_url); st.prepare()
sys.exit(asyncio.run(Supervisor(st,s,Options(app=sys.argv[1])).run()))
