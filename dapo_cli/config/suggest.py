"""Nearest-name suggestions for what was misspelt."""

import difflib
from collections.abc import Iterable


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `name`, or None when none is alike.

    >>> closest("learnig_rate", ["learning_rate", "seed"])
    'learning_rate'
    """
    found = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return found[0] if found else None


def closest_key(key: str, known: Iterable[str]) -> str | None:
    """The known dotted key most likely meant by `key`: the same last part elsewhere, else a like spelling.

    >>> closest_key("algorithm.lr", ["algorithm.clip_low", "optimizer.lr"])
    'optimizer.lr'
    >>> closest_key("sampling.temprature", ["sampling.temperature", "eval.sampling.temperature"])
    'sampling.temperature'
    """
    known = list(known)
    section, _, leaf = key.rpartition(".")
    same_leaf = [other for other in known if other.rpartition(".")[2] == leaf]
    if same_leaf:
        return closest(key, same_leaf) or same_leaf[0]
    siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    near_sibling = closest(leaf, siblings)
    if near_sibling:
        return siblings[near_sibling]
    near = closest(key, known)
    if near:
        return near
    by_leaf = {other.rpartition(".")[2]: other for other in reversed(known)}
    near_leaf = closest(leaf, by_leaf)
    return by_leaf[near_leaf] if near_leaf else None


def hint(name: str, candidates: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing."""
    near = closest(name, candidates)
    return f"; did you mean {near}?" if near else ""
