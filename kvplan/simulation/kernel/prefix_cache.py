"""What the prefix cache holds: blocks with identities where prompts share content, mere counts where they do not.

Source: vLLM 0.33's block pool. New blocks come from the front of the free queue and lose their content. On release,
last block first, blocks without content go to the front and all others to the back.

Where no content is shared, only preempted requests find blocks again (``kept``). In order of eviction the free queue
then is: other blocks, those of the first preempted request, other blocks, those of the second, …, and the rest. One
entry for each waiting request is enough: the blocks before its own, and its own. The request preempted last is admitted
first, so the entries are a stack that is used up from the bottom.
"""

from kvplan.simulation.kernel.state import (
    BLOCK,
    BLOCK_TABLE,
    BLOCKS_CACHED,
    BLOCKS_HELD,
    BOOK,
    BOOK_AT,
    CELL,
    CELL_AT,
    CHAIN_TOKENS,
    CONTENT,
    FREE,
    HOLDERS,
    KEPT_BLOCKS,
    KEPT_END,
    KEPT_FROM,
    KEY_BASE,
    NEXT_FREE,
    NODE_START,
    NODES,
    PER_NODE,
    PREVIOUS_FREE,
    ROOT,
    SHARED,
    TABLE,
    TAIL,
    TWIN,
    WIDTH,
    Ints,
    Pool,
)


def content_of(i: int, j: int, pool: Pool) -> int:
    """The number of what block ``j`` of request ``i`` holds: shared as far as its chain of ids is."""
    book, at = pool[BOOK], pool[BOOK_AT]
    shared = book[at[SHARED] + i]
    if j >= shared:
        return pool[KEY_BASE] + book[at[TAIL] + i] + j - shared
    link = ((j + 1) * pool[BLOCK] - 1) // pool[CHAIN_TOKENS]
    node = book[at[NODES] + book[at[NODE_START] + i] + link]
    return pool[KEY_BASE] + node * pool[PER_NODE] + j - link * pool[CHAIN_TOKENS] // pool[BLOCK]


def uncache_block(b: int, pool: Pool) -> None:
    """Block ``b`` loses its content."""
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


def cache_blocks(s: int, i: int, full: int, pool: Pool) -> None:
    """The first ``full`` blocks of slot ``s`` hold the content of request ``i``."""
    cell, table, at = pool[CELL], pool[TABLE], pool[CELL_AT]
    content, twin, cached = at[CONTENT], at[TWIN], at[BLOCKS_CACHED]
    placed = at[BLOCK_TABLE] + s * pool[WIDTH]
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
    """Give slot ``s`` ``count`` blocks from the front of the free queue."""
    cell, at, root = pool[CELL], pool[CELL_AT], pool[ROOT]
    behind, ahead, holders, many = at[NEXT_FREE], at[PREVIOUS_FREE], at[HOLDERS], at[BLOCKS_HELD]
    placed = at[BLOCK_TABLE] + s * pool[WIDTH] + cell[many + s]
    for j in range(count):
        b = cell[behind + root]
        rest = cell[behind + b]
        cell[behind + root] = rest
        cell[ahead + rest] = root
        uncache_block(b, pool)
        cell[holders + b] = 1
        cell[placed + j] = b
    cell[many + s] += count


def return_blocks(s: int, pool: Pool) -> int:
    """Return all blocks of slot ``s``, last first; how many of them nobody else holds."""
    cell, at, root = pool[CELL], pool[CELL_AT], pool[ROOT]
    behind, ahead, holders, content, many = at[NEXT_FREE], at[PREVIOUS_FREE], at[HOLDERS], at[CONTENT], at[BLOCKS_HELD]
    placed = at[BLOCK_TABLE] + s * pool[WIDTH]
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
    cell[at[BLOCKS_CACHED] + s] = 0
    return freed


def find_blocks(s: int, i: int, known: int, pool: Pool) -> tuple[int, int]:
    """Look up the cached blocks at the start of request ``i`` that leave one known token to compute, and put them in
    the block table of slot ``s``, which is still empty. How many there are, and how many of them are in the free
    queue."""
    cell, table, holders = pool[CELL], pool[TABLE], pool[CELL_AT][HOLDERS]
    placed = pool[CELL_AT][BLOCK_TABLE] + s * pool[WIDTH]
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
    """Slot ``s`` takes the ``hits`` blocks that were found for it; they leave the free queue."""
    cell, at = pool[CELL], pool[CELL_AT]
    behind, ahead, holders = at[NEXT_FREE], at[PREVIOUS_FREE], at[HOLDERS]
    placed = at[BLOCK_TABLE] + s * pool[WIDTH]
    for j in range(hits):
        b = cell[placed + j]
        if cell[holders + b] == 0:
            left, right = cell[ahead + b], cell[behind + b]
            cell[behind + left] = right
            cell[ahead + right] = left
        cell[holders + b] += 1
    cell[at[BLOCKS_HELD] + s] = hits
    cell[at[BLOCKS_CACHED] + s] = hits


def evict(count: int, st: Ints, kept: Ints) -> None:
    """``count`` blocks leave the front of the free queue and lose their content."""
    while count > 0 and st[KEPT_FROM] < st[KEPT_END]:
        at = 2 * st[KEPT_FROM]
        others = min(count, kept[at])
        own = min(count - others, kept[at + 1])
        kept[at] -= others
        kept[at + 1] -= own
        st[KEPT_BLOCKS] -= others + own
        count -= others + own
        if kept[at] + kept[at + 1] == 0:
            st[KEPT_FROM] += 1


def return_empty(empty: int, st: Ints, kept: Ints) -> None:
    """``empty`` blocks without content go to the front of the queue; those behind all entries need no note."""
    if st[KEPT_FROM] < st[KEPT_END]:
        kept[2 * st[KEPT_FROM]] += empty
        st[KEPT_BLOCKS] += empty


def keep_blocks(own: int, st: Ints, kept: Ints) -> None:
    """A request is preempted: ``own`` blocks with its content, already free, are the last of the queue."""
    at = 2 * st[KEPT_END]
    kept[at] = st[FREE] - own - st[KEPT_BLOCKS]
    kept[at + 1] = own
    st[KEPT_END] += 1
    st[KEPT_BLOCKS] = st[FREE]


def blocks_kept(st: Ints, kept: Ints) -> int:
    """Blocks that the request preempted last would find."""
    return kept[2 * st[KEPT_END] - 1] if st[KEPT_FROM] < st[KEPT_END] else 0


def drop_kept(st: Ints, kept: Ints) -> None:
    """The request preempted last leaves the queue; its blocks are held again, or like all others."""
    st[KEPT_END] -= 1
    if st[KEPT_FROM] > st[KEPT_END]:
        st[KEPT_FROM] = st[KEPT_END]
    else:
        at = 2 * st[KEPT_END]
        st[KEPT_BLOCKS] -= kept[at] + kept[at + 1]
