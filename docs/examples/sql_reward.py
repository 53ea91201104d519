"""A reward for text-to-SQL: right if the model's query gives the rows that the reference query gives.

The prompt holds the tables in its first ```sql block, the completion its query in the last one, and the answer is the
reference query. A query of the model may read and nothing else, for a bounded number of steps.
"""

import re
import sqlite3

from dapo_cli.types import Outcome, Verdict

BLOCK = re.compile(r"```sql\s*\n(.*?)```", re.DOTALL)
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
MAX_STEPS = 1_000_000  # of sqlite's virtual machine: about 0.1 s
MAX_ROWS = 1_000


def verify(prompt: str, completion: str, answer: str) -> Verdict:
    written = BLOCK.findall(completion)
    if not written:
        return Verdict(Outcome.WRONG, None, "no_query")
    query = written[-1].strip()
    database = sqlite3.connect(":memory:")
    database.executescript(BLOCK.findall(prompt)[0])
    expected = database.execute(answer).fetchmany(MAX_ROWS)  # a faulty reference raises: the verdict is `failed`
    try:
        found = run_readonly(database, query)
    except sqlite3.Error as error:
        return Verdict(Outcome.WRONG, query, f"query:{type(error).__name__}")
    if "order by" not in answer.lower():
        expected, found = sorted(expected, key=repr), sorted(found, key=repr)
    return Verdict(Outcome.RIGHT if found == expected else Outcome.WRONG, query, "query:rows")


def run_readonly(database: sqlite3.Connection, query: str) -> list[tuple]:
    """Raises sqlite3.Error for a query that fails, writes, attaches a file or runs on."""
    database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
    database.set_progress_handler(lambda: True, MAX_STEPS)
    return database.execute(query).fetchmany(MAX_ROWS)
