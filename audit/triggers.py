"""SQL that makes a table append-only, for both databases."""

SQLITE = [
    """
    CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table}
    BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END;
    """,
    """
    CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table}
    BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END;
    """,
]
SQLITE_REVERSE = ["DROP TRIGGER IF EXISTS {table}_no_update;", "DROP TRIGGER IF EXISTS {table}_no_delete;"]

POSTGRESQL = [
    """
    CREATE FUNCTION {table}_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION '{table} is append-only' USING ERRCODE = 'integrity_constraint_violation';
    END; $$;
    """,
    """
    CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION {table}_refuse();
    """,
    """
    CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {table}_refuse();
    """,
]
POSTGRESQL_REVERSE = [
    "DROP TRIGGER IF EXISTS {table}_no_change ON {table};",
    "DROP TRIGGER IF EXISTS {table}_no_truncate ON {table};",
    "DROP FUNCTION IF EXISTS {table}_refuse();",
]


def install(schema_editor, table: str) -> None:
    """Put them there, whatever was there before."""
    remove(schema_editor, table)
    execute(schema_editor, {"sqlite": SQLITE, "postgresql": POSTGRESQL}, table)


def remove(schema_editor, table: str) -> None:
    """Take them away, as far as they are there."""
    execute(schema_editor, {"sqlite": SQLITE_REVERSE, "postgresql": POSTGRESQL_REVERSE}, table)


def execute(schema_editor, statements: dict[str, list[str]], table: str) -> None:
    for statement in statements[schema_editor.connection.vendor]:
        schema_editor.execute(statement.format(table=table), params=None)
