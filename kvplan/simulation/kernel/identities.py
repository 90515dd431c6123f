"""Blocks with identities, where prefix caching matters: a free queue in order of eviction, content, and who holds what.

Source: vLLM 0.33's block pool. New blocks come from the queue's front and lose their content; on release, last block
first, those without content go to the front and the others to the back.
"""

from kvplan.simulation.kernel.places import (
    AHEAD,
    BEHIND,
    BLOCK,
    BOOK,
    BOOK_AT,
    CACHED,
    CELL,
    CELL_AT,
    CHAIN_TOKENS,
    CONTENT,
    HOLDERS,
    KEY_BASE,
    MANY,
    NODE_START,
    NODES,
    PER_NODE,
    PLACED,
    ROOT,
    SHARED,
    TABLE,
    TAIL,
    TWIN,
    WIDTH,
    Pool,
)


def content_of(i: int, j: int, pool: Pool) -> int:
    """The number of what block ``j`` of request ``i`` holds: shared where the chain of ids up to it is."""
    book, at = pool[BOOK], pool[BOOK_AT]
    shared = book[at[SHARED] + i]
    if j >= shared:
        return pool[KEY_BASE] + book[at[TAIL] + i] + j - shared
    link = ((j + 1) * pool[BLOCK] - 1) // pool[CHAIN_TOKENS]
    node = book[at[NODES] + book[at[NODE_START] + i] + link]
    return pool[KEY_BASE] + node * pool[PER_NODE] + j - link * pool[CHAIN_TOKENS] // pool[BLOCK]


def forget(b: int, pool: Pool) -> None:
    """Block ``b`` holds nothing known any more."""
    cell, table = pool[CELL], pool[TABLE]
    content, twin = pool[CELL_AT][CONTENT], pool[CELL_AT][TWIN]
    key = cell[content + b]
    if key < 0:
        return
    first = table[key]
    if first == b:
        if cell[twin + b] < 0:
            del table[key]
        else:
            table[key] = cell[twin + b]
    else:
        while cell[twin + first] != b:
            first = cell[twin + first]
        cell[twin + first] = cell[twin + b]
    cell[content + b] = -1
    cell[twin + b] = -1


def remember(s: int, i: int, full: int, pool: Pool) -> None:
    """The first ``full`` blocks of slot ``s`` hold what request ``i`` says."""
    cell, table, at = pool[CELL], pool[TABLE], pool[CELL_AT]
    content, twin, cached = at[CONTENT], at[TWIN], at[CACHED]
    placed = at[PLACED] + s * pool[WIDTH]
    for j in range(cell[cached + s], full):
        b = cell[placed + j]
        key = content_of(i, j, pool)
        cell[content + b] = key
        if key not in table:
            table[key] = b
        else:
            first = table[key]
            while cell[twin + first] >= 0:
                first = cell[twin + first]
            cell[twin + first] = b
    cell[cached + s] = max(cell[cached + s], full)


def take_blocks(s: int, count: int, pool: Pool) -> None:
    """``count`` blocks from the front of the free queue for slot ``s``."""
    cell, at, root = pool[CELL], pool[CELL_AT], pool[ROOT]
    behind, ahead, holders, many = at[BEHIND], at[AHEAD], at[HOLDERS], at[MANY]
    placed = at[PLACED] + s * pool[WIDTH] + cell[many + s]
    for j in range(count):
        b = cell[behind + root]
        rest = cell[behind + b]
        cell[behind + root] = rest
        cell[ahead + rest] = root
        forget(b, pool)
        cell[holders + b] = 1
        cell[placed + j] = b
    cell[many + s] += count


def return_blocks(s: int, pool: Pool) -> int:
    """All blocks of slot ``s`` go back, last first; how many nobody else holds."""
    cell, at, root = pool[CELL], pool[CELL_AT], pool[ROOT]
    behind, ahead, holders, content, many = at[BEHIND], at[AHEAD], at[HOLDERS], at[CONTENT], at[MANY]
    placed = at[PLACED] + s * pool[WIDTH]
    freed = 0
    front = root
    for j in range(cell[many + s] - 1, -1, -1):
        b = cell[placed + j]
        cell[holders + b] -= 1
        if cell[holders + b] == 0:
            freed += 1
            if cell[content + b] < 0:
                left = front
                front = b
            else:
                left = cell[ahead + root]
            right = cell[behind + left]
            cell[behind + left] = b
            cell[ahead + b] = left
            cell[behind + b] = right
            cell[ahead + right] = b
    cell[many + s] = 0
    cell[at[CACHED] + s] = 0
    return freed


def find_blocks(s: int, i: int, known: int, pool: Pool) -> tuple[int, int]:
    """The cached blocks from the start of request ``i`` that leave one known token to compute go to the places of slot
    ``s``, which is still empty. How many they are, and how many of them lie in the free queue."""
    cell, table, holders = pool[CELL], pool[TABLE], pool[CELL_AT][HOLDERS]
    placed = pool[CELL_AT][PLACED] + s * pool[WIDTH]
    hits = 0
    unheld = 0
    for j in range((known - 1) // pool[BLOCK]):
        key = content_of(i, j, pool)
        if key not in table:
            break
        b = table[key]
        cell[placed + j] = b
        hits += 1
        if cell[holders + b] == 0:
            unheld += 1
    return hits, unheld


def hold_found(s: int, hits: int, pool: Pool) -> None:
    """Slot ``s`` begins with the ``hits`` blocks that were found for it; they leave the free queue."""
    cell, at = pool[CELL], pool[CELL_AT]
    behind, ahead, holders = at[BEHIND], at[AHEAD], at[HOLDERS]
    placed = at[PLACED] + s * pool[WIDTH]
    for j in range(hits):
        b = cell[placed + j]
        if cell[holders + b] == 0:
            left, right = cell[ahead + b], cell[behind + b]
            cell[behind + left] = right
            cell[ahead + right] = left
        cell[holders + b] += 1
    cell[at[MANY] + s] = hits
    cell[at[CACHED] + s] = hits
