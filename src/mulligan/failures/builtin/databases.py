"""Rules about SQLSTATEs and about the codes and exception types of databases and brokers."""

from __future__ import annotations

from mulligan.failures.rules import row, split_names

_POSTGRES = (
    row("sql.cancelled-by-user", "STOPPED", sqlstate="57014", message=r"\buser request\b"),
    row("sql.timeout", "TIMEOUT", sqlstate=split_names("57014 25P03 25P04 HYT00 HYT01")),
    row("sql.conflict", "DATABASE_CONFLICT", sqlstate=split_names("40* 55P03 55006 HY008")),
    row(
        "sql.shutting-down",
        "DATABASE_UNAVAILABLE",
        sqlstate=split_names("08* 57P01 57P02 57P03 57P05 58030 25006 72000"),
    ),
    row(
        "sql.cached-plan",
        "DATABASE_CONFLICT",
        sqlstate="0A000",
        message=r"\bcached plan must not change\b",
    ),
    row("sql.disk-full", "DISK_FULL", sqlstate="53100"),
    row("sql.memory", "MEMORY", sqlstate="53200"),
    row("sql.too-many", "TOO_MANY_FILES", sqlstate=split_names("53300 53400 53000")),
    row("sql.auth", "AUTH", sqlstate="28*"),
    row("sql.denied", "ACCESS_DENIED", sqlstate="42501"),
    row("sql.data", "DATA_REFUSED", sqlstate=split_names("21* 22* 23* 44* 54*")),
    row("sql.broken", "DATABASE_BROKEN", sqlstate=("XX001", "XX002")),
    row(
        "sql.schema",
        "DATABASE_SCHEMA",
        sqlstate=split_names("0A* 3D* 3F* 42* 2B* 26* 34* 25* P0* 55000 57P04 58P01 58P02"),
    ),
)

_DRIVERS = (
    row(
        "pg.conflict",
        "DATABASE_CONFLICT",
        type=split_names(
            """
            psycopg.errors.SerializationFailure psycopg.errors.DeadlockDetected psycopg2.errors.SerializationFailure
            psycopg2.errors.DeadlockDetected asyncpg.exceptions.DeadlockDetectedError
            asyncpg.exceptions.SerializationError psycopg.errors.LockNotAvailable psycopg2.errors.LockNotAvailable
            DeadlockDetected SerializationFailure LockNotAvailable LockNotAvailableError
            """
        ),
    ),
    row(
        "pg.cancelled-by-user",
        "STOPPED",
        type=("QueryCanceled", "QueryCanceledError"),
        message=r"\buser request\b",
    ),
    row(
        "pg.timeout",
        "TIMEOUT",
        type=split_names("QueryCanceled QueryCanceledError IdleInTransactionSessionTimeout"),
    ),
    row(
        "pg.unavailable",
        "DATABASE_UNAVAILABLE",
        type=split_names(
            """
            AdminShutdown CrashShutdown CannotConnectNow CannotConnectNowError AdminShutdownError
            ConnectionDoesNotExistError ConnectionFailure ReadOnlySqlTransaction PostgresConnectionError
            """
        ),
    ),
    row("pg.too-many", "TOO_MANY_FILES", type=("TooManyConnections", "TooManyConnectionsError")),
    row("pg.disk-full", "DISK_FULL", type=("DiskFull", "DiskFullError")),
    row("pg.memory", "MEMORY", type=("psycopg.errors.OutOfMemory", "psycopg2.errors.OutOfMemory")),
    row(
        "pg.auth",
        "AUTH",
        type=split_names(
            """
            InvalidPassword InvalidPasswordError InvalidAuthorizationSpecification
            InvalidAuthorizationSpecificationError
            """
        ),
    ),
    row("pg.denied", "ACCESS_DENIED", type=("InsufficientPrivilege", "InsufficientPrivilegeError")),
    row(
        "pg.data",
        "DATA_REFUSED",
        type=split_names(
            """
            UniqueViolation UniqueViolationError ForeignKeyViolation ForeignKeyViolationError NotNullViolation
            NotNullViolationError CheckViolation CheckViolationError ExclusionViolation StringDataRightTruncation
            NumericValueOutOfRange InvalidTextRepresentation InvalidDatetimeFormat DataError IntegrityError
            DatetimeFieldOverflow UntranslatableCharacter CharacterNotInRepertoire ProgramLimitExceeded
            InvalidTextRepresentationError
            """
        ),
    ),
    row(
        "pg.schema",
        "DATABASE_SCHEMA",
        type=split_names(
            """
            UndefinedTable UndefinedTableError UndefinedColumn UndefinedColumnError UndefinedFunction
            UndefinedFunctionError SyntaxErrorOrAccessError PostgresSyntaxError InvalidCatalogName
            InvalidCatalogNameError UndefinedObject DuplicateTable DuplicateColumn FeatureNotSupported
            FeatureNotSupportedError DatatypeMismatch AmbiguousColumn UndefinedParameter InFailedSqlTransaction
            NoSuchTableError NoSuchColumnError GroupingError InvalidSchemaName DatatypeMismatchError
            InvalidSqlStatementName psycopg.errors.SyntaxError psycopg2.errors.SyntaxError
            """
        ),
    ),
)

_MYSQL = (
    row(
        "mysql.conflict",
        "DATABASE_CONFLICT",
        provider_code=split_names(
            """
            mysql:1205 mysql:1213 mysql:1689 mysql:3572 mysql:1020 mysql:1412 mysql:1615 mysql:1613 mysql:1614 mysql:3058
            mysql:3101
            """
        ),
    ),
    row(
        "mysql.denied-at-door",
        "AUTH",
        provider_code=("mysql:2006", "mysql:2013"),
        message=r"\baccess denied for user\b",
    ),
    row(
        "mysql.gone",
        "DATABASE_UNAVAILABLE",
        provider_code=split_names(
            """
            mysql:2006 mysql:2013 mysql:2002 mysql:2003 mysql:2055 mysql:1053 mysql:1927 mysql:1152 mysql:1159
            mysql:1161 mysql:1158 mysql:1160 mysql:1290 mysql:1836 mysql:2014 mysql:2027 mysql:1047 mysql:1105
            mysql:1184 mysql:1129 mysql:1042 mysql:1043 mysql:1156 mysql:4031
            """
        ),
    ),
    row("mysql.timeout", "TIMEOUT", provider_code=("mysql:3024", "mysql:1969")),
    row("mysql.full", "DISK_FULL", provider_code=split_names("mysql:1021 mysql:1114 mysql:1030")),
    row(
        "mysql.too-many",
        "TOO_MANY_FILES",
        provider_code=split_names(
            "mysql:1040 mysql:1203 mysql:1226 mysql:1135 mysql:1037 mysql:1041 mysql:1038 mysql:1461 mysql:1637"
        ),
    ),
    row(
        "mysql.auth",
        "AUTH",
        provider_code=split_names(
            """
            mysql:1045 mysql:1044 mysql:1698 mysql:1251 mysql:2059 mysql:2061 mysql:1862 mysql:1820 mysql:3118
            """
        ),
    ),
    row(
        "mysql.denied",
        "ACCESS_DENIED",
        provider_code=split_names("mysql:1142 mysql:1143 mysql:1227 mysql:1130 mysql:1370"),
    ),
    row(
        "mysql.data",
        "DATA_REFUSED",
        provider_code=split_names(
            """
            mysql:1062 mysql:1048 mysql:1264 mysql:1265 mysql:1292 mysql:1366 mysql:1406 mysql:1451 mysql:1452
            mysql:1586 mysql:1364 mysql:1153 mysql:1690 mysql:3140 mysql:3819 mysql:1411 mysql:1365 mysql:1267
            mysql:1300 mysql:1216 mysql:1217
            """
        ),
    ),
    row(
        "mysql.schema",
        "DATABASE_SCHEMA",
        provider_code=split_names(
            """
            mysql:1049 mysql:1054 mysql:1064 mysql:1146 mysql:1305 mysql:1136 mysql:1050 mysql:1060 mysql:1091
            mysql:1071 mysql:1118 mysql:1055 mysql:1115 mysql:1193 mysql:1228 mysql:1235 mysql:1046 mysql:1109
            mysql:1052 mysql:1101 mysql:1067 mysql:1241 mysql:1318
            """
        ),
    ),
    row("mysql.other", "DATABASE_SCHEMA", provider_code=("mysql:1*", "mysql:3*")),
)

_ORACLE = (
    row(
        "oracle.unavailable",
        "DATABASE_UNAVAILABLE",
        provider_code=split_names(
            """
            ora:01033 ora:01034 ora:01089 ora:01090 ora:03113 ora:03114 ora:03135 ora:12152 ora:12153 ora:12514 ora:12528
            ora:12537 ora:12541 ora:12543 ora:12547 ora:12571 ora:01092 ora:25408 ora:12526 ora:12505
            """
        ),
    ),
    row(
        "oracle.timeout",
        "TIMEOUT",
        provider_code=split_names("ora:12170 ora:01013 ora:12535 ora:02049 ora:12606"),
    ),
    row(
        "oracle.conflict",
        "DATABASE_CONFLICT",
        provider_code=split_names(
            "ora:00054 ora:00060 ora:03170 ora:08177 ora:01555 ora:04021 ora:30006"
        ),
    ),
    row(
        "oracle.too-many",
        "TOO_MANY_FILES",
        provider_code=split_names(
            "ora:00018 ora:00020 ora:12516 ora:12518 ora:12519 ora:12520 ora:02391"
        ),
    ),
    row(
        "oracle.full",
        "DISK_FULL",
        provider_code=split_names(
            "ora:01652 ora:01653 ora:01654 ora:01691 ora:00257 ora:01536 ora:19809"
        ),
    ),
    row("oracle.memory", "MEMORY", provider_code=split_names("ora:04031 ora:27102 ora:04030")),
    row(
        "oracle.auth",
        "AUTH",
        provider_code=split_names("ora:01017 ora:28000 ora:28001 ora:01045 ora:01005 ora:28009"),
    ),
    row(
        "oracle.denied", "ACCESS_DENIED", provider_code=split_names("ora:01031 ora:01950 ora:00990")
    ),
    row(
        "oracle.data",
        "DATA_REFUSED",
        provider_code=split_names(
            "ora:00001 ora:01400 ora:01438 ora:01722 ora:02290 ora:02291 ora:02292 ora:12899 ora:01861 ora:01843 ora:01858"
        ),
    ),
    row("oracle.other", "DATABASE_SCHEMA", provider_code="ora:*"),
)

_SQLITE = (
    row(
        "sqlite.busy",
        "DATABASE_CONFLICT",
        provider_code=split_names(
            "sqlite:SQLITE_BUSY* sqlite:SQLITE_LOCKED* sqlite:SQLITE_PROTOCOL"
        ),
    ),
    row("sqlite.full", "DISK_FULL", provider_code=("sqlite:SQLITE_FULL",)),
    row("sqlite.io", "IO_ERROR", provider_code=("sqlite:SQLITE_IOERR*", "sqlite:SQLITE_INTERRUPT")),
    row("sqlite.memory", "MEMORY", provider_code=("sqlite:SQLITE_NOMEM",)),
    row(
        "sqlite.broken",
        "DATABASE_BROKEN",
        provider_code=("sqlite:SQLITE_CORRUPT*", "sqlite:SQLITE_NOTADB"),
    ),
    row(
        "sqlite.denied",
        "PERMISSION",
        provider_code=split_names(
            """
            sqlite:SQLITE_READONLY* sqlite:SQLITE_PERM sqlite:SQLITE_AUTH sqlite:SQLITE_CANTOPEN*
            """
        ),
    ),
    row(
        "sqlite.data",
        "DATA_REFUSED",
        provider_code=split_names(
            """
            sqlite:SQLITE_CONSTRAINT* sqlite:SQLITE_MISMATCH sqlite:SQLITE_TOOBIG sqlite:SQLITE_RANGE
            """
        ),
    ),
    row(
        "sqlite.schema",
        "DATABASE_SCHEMA",
        provider_code=split_names("sqlite:SQLITE_ERROR sqlite:SQLITE_MISUSE sqlite:SQLITE_SCHEMA"),
    ),
    row(
        "sqlite.no-table",
        "DATABASE_SCHEMA",
        type=("sqlite3.OperationalError", "OperationalError"),
        message=(
            r"\bno such (?:table|column|function|index|module|savepoint)\b",
            r"\bsyntax error\b",
            r"\bhas no column named\b",
            r"\balready exists\b",
            r"\bduplicate column\b",
        ),
    ),
    row(
        "sqlite.locked",
        "DATABASE_CONFLICT",
        type=("sqlite3.OperationalError", "OperationalError"),
        message=r"\b(?:database|table)(?: table| schema)? is locked\b",
    ),
    row(
        "sqlite.disk",
        "DISK_FULL",
        type=("sqlite3.OperationalError", "OperationalError"),
        message=r"\bdatabase or disk is full\b",
    ),
    row(
        "sqlite.readonly",
        "PERMISSION",
        type=("sqlite3.OperationalError", "OperationalError"),
        message=(
            r"\bunable to open database file\b",
            r"\battempt to write a readonly database\b",
        ),
    ),
    row(
        "sqlite.malformed",
        "DATABASE_BROKEN",
        type=("sqlite3.DatabaseError", "DatabaseError"),
        message=(
            r"\bdisk image is malformed\b",
            r"\bfile is not a database\b",
        ),
    ),
)

_BROKERS = (
    row(
        "redis.busy",
        "DATABASE_UNAVAILABLE",
        provider_code=split_names(
            """
            redis:LOADING redis:BUSY redis:MASTERDOWN redis:READONLY redis:CLUSTERDOWN redis:TRYAGAIN redis:MOVED
            redis:ASK
            """
        ),
    ),
    row("redis.full", "SERVICE_FULL", provider_code=("redis:OOM", "redis:MISCONF")),
    row("redis.auth", "AUTH", provider_code=("redis:NOAUTH", "redis:WRONGPASS")),
    row("redis.denied", "ACCESS_DENIED", provider_code="redis:NOPERM"),
    row(
        "redis.misused",
        "MISCONFIGURED",
        provider_code=split_names("redis:WRONGTYPE redis:NOSCRIPT redis:EXECABORT redis:CROSSSLOT"),
    ),
    row(
        "redis.type-busy",
        "DATABASE_UNAVAILABLE",
        type=split_names(
            """
            redis.exceptions.BusyLoadingError redis.exceptions.TryAgainError redis.exceptions.ClusterDownError
            redis.exceptions.ReadOnlyError redis.exceptions.MasterDownError BusyLoadingError ClusterDownError
            ReadOnlyError MasterNotFoundError SlaveNotFoundError
            """
        ),
    ),
    row("redis.type-full", "SERVICE_FULL", type=("redis.exceptions.OutOfMemoryError",)),
    row(
        "redis.pool",
        "TOO_MANY_FILES",
        type=("redis.exceptions.MaxConnectionsError", "MaxConnectionsError"),
    ),
    row(
        "redis.type-auth",
        "AUTH",
        type=split_names(
            """
            redis.exceptions.AuthenticationError redis.exceptions.AuthenticationWrongNumberOfArgsError
            redis.exceptions.AuthorizationError
            """
        ),
    ),
    row("redis.type-denied", "ACCESS_DENIED", type=("redis.exceptions.NoPermissionError",)),
    row(
        "redis.type-misused",
        "MISCONFIGURED",
        type=split_names(
            """
            redis.exceptions.DataError redis.exceptions.NoScriptError redis.exceptions.ModuleError
            redis.exceptions.ExecAbortError redis.exceptions.CrossSlotTransactionError
            """
        ),
    ),
    row(
        "kafka.unavailable",
        "DATABASE_UNAVAILABLE",
        type=split_names(
            """
            NoBrokersAvailable KafkaConnectionError NodeNotReadyError LeaderNotAvailableError
            NotLeaderForPartitionError NotLeaderOrFollowerError NotEnoughReplicasError CoordinatorNotAvailableError
            RequestTimedOutError GroupCoordinatorNotAvailableError RebalanceInProgressError
            CoordinatorLoadInProgressError NotCoordinatorError IllegalGenerationError UnknownMemberIdError
            CommitFailedError
            """
        ),
    ),
    row("kafka.timeout", "TIMEOUT", type=("KafkaTimeoutError",)),
    row(
        "kafka.refused",
        "MISCONFIGURED",
        type=split_names(
            """
            UnknownTopicOrPartitionError InvalidTopicError UnsupportedVersionError UnsupportedCodecError
            """
        ),
    ),
    row(
        "kafka.too-large",
        "TOO_LARGE",
        type=split_names("MessageSizeTooLargeError RecordListTooLargeError DocumentTooLarge"),
    ),
    row(
        "kafka.denied",
        "ACCESS_DENIED",
        type=split_names(
            """
            TopicAuthorizationFailedError GroupAuthorizationFailedError ClusterAuthorizationFailedError
            """
        ),
    ),
    row(
        "amqp.gone",
        "DATABASE_UNAVAILABLE",
        type=split_names(
            """
            AMQPConnectionError StreamLostError ConnectionClosedByBroker AMQPHeartbeatTimeout
            ChannelInvalidStateError ConnectionWrongStateError ConnectionBlockedTimeout
            """
        ),
    ),
    row("amqp.auth", "AUTH", type=("ProbableAuthenticationError", "ProbableAccessDeniedError")),
    row(
        "amqp.closed",
        "MISCONFIGURED",
        type=("ChannelClosedByBroker", "ChannelClosed", "ConnectionClosedByBroker"),
        message=(r"\bNOT_FOUND\b", r"\bPRECONDITION_FAILED\b", r"\bACCESS_REFUSED\b"),
    ),
    row(
        "amqp.refused",
        "MISCONFIGURED",
        type=split_names("ChannelPreconditionFailed ChannelNotFoundEntity ChannelNotAllowed"),
    ),
    row(
        "mongo.refused-selection",
        "DATABASE_UNAVAILABLE",
        type=("ServerSelectionTimeoutError",),
        message=(
            r"\bconnection refused\b",
            r"\bName or service\b",
            r"\bconnection closed\b",
            r"\bnot primary\b",
            r"\bReplicaSetNoPrimary\b",
        ),
    ),
    row(
        "mongo.auth",
        "AUTH",
        type=("OperationFailure", "pymongo.errors.OperationFailure"),
        message=(
            r"\bauthentication failed\b",
            r"\brequires authentication\b",
            r"\bbad auth\b",
        ),
    ),
    row(
        "mongo.denied",
        "ACCESS_DENIED",
        type=("OperationFailure",),
        message=(
            r"\bnot authorized\b",
            r"\buser is not allowed\b",
        ),
    ),
    row(
        "mongo.gone",
        "DATABASE_UNAVAILABLE",
        type=split_names(
            """
            AutoReconnect NotPrimaryError NotMasterError pymongo.errors.ConnectionFailure WaitQueueTimeoutError
            ServerSelectionTimeoutError NetworkTimeout
            """
        ),
    ),
    row("mongo.timeout", "TIMEOUT", type=("ExecutionTimeout",)),
    row(
        "mongo.data",
        "DATA_REFUSED",
        type=split_names(
            "DuplicateKeyError InvalidDocument InvalidBSON pymongo.errors.WriteError InvalidId"
        ),
    ),
)

RULES = (*_POSTGRES, *_DRIVERS, *_MYSQL, *_ORACLE, *_SQLITE, *_BROKERS)
