"""The log directories of a broker at its start: opened, loaded, without copies of one replica.

Owns which directories serve until the next start, and the lines of the log about what their loads
found. Not one directory: see `storage.directory`. Not what else a start does: see `process`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.model.registration import FormerRegistration
from tidelog.storage.directory import log_directory as storage
from tidelog.storage.directory.copies import MOVED, FoundReplica, judge
from tidelog.storage.directory.identity import renamed

if TYPE_CHECKING:
    from tidelog.broker.metadata.configurations import ConfigCache
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.model.topics import TopicPartition
    from tidelog.runtime.seams import Seams

logger = logging.getLogger(__name__)

SAY_LOADING_AFTER_S, SAY_LOADING_EVERY_S = 2.0, 10.0
"""When a start first logs the progress of loading a directory, and the interval after that."""

_BEFORE = {
    storage.LastStop.NEW: "a new directory",
    storage.LastStop.CLEAN: "after a clean stop",
    storage.LastStop.CRASHED: "after a kill",
    storage.LastStop.UNCLEAN: "after the machine stopped, so that unsynced records may be lost",
}

_FORMER_REGISTRATIONS = {
    storage.LastStop.NEW: FormerRegistration.CLEAN,
    storage.LastStop.CLEAN: FormerRegistration.CLEAN,
    storage.LastStop.CRASHED: FormerRegistration.CRASHED,
    storage.LastStop.UNCLEAN: FormerRegistration.UNCLEAN,
}


class StartFailed(Exception):
    """The broker cannot start; the text is one line: the reason and what to do."""


class LogDirectories:
    """The log directories of one broker process. Used on its event loop."""

    def __init__(self, configs: ServerConfigs, seams: Seams) -> None:
        self._configs = configs
        self._seams = seams
        self.all: list[storage.LogDirectory] = []
        """Those that can be used, in the order of ``log.dirs``."""
        self.away: list[str] = []
        """A sentence for each log directory that cannot be used until the next start."""

    def open(self, cluster_id: str, boot_id: str, open_files: int, founded_as: str = "") -> None:
        """Open all; ``open_files`` is for all together. Raises StartFailed without a single one.

        ``founded_as``: see ``storage.directory.identity.renamed``.
        """
        configs = self._configs
        for path in configs.log_dirs:
            try:
                opened = storage.open_directory(
                    self._seams,
                    path,
                    cluster_id=cluster_id,
                    node_id=configs.node_id,
                    boot_id=boot_id,
                    open_files=max(2, open_files // len(configs.log_dirs)),
                    producer_expiration_ms=configs.producer_id_expiration_ms,
                    founded_as=founded_as,
                )
            except OSError as error:
                self._go_on_without(f"log directory {path} cannot be used: {error}")
                continue
            if isinstance(opened, storage.DirectoryRefused):
                raise StartFailed(opened.reason)
            opened.resources.checks_records = configs.log_batch_check == "full"
            self.all.append(opened)
        self._need_one()

    def _go_on_without(self, sentence: str) -> None:
        """Serve from the other log directories until the next start, as Apache Kafka does."""
        self.away.append(sentence)
        if len(self._configs.log_dirs) > 1:
            logger.error("%s; its replicas are out of service until the next start", sentence)

    def _need_one(self) -> None:
        if not self.all:
            raise StartFailed("; ".join(self.away))

    async def take_cluster_id(self, cluster_id: str) -> bool:
        """Give all directories another cluster id; False when one holds something, or fails."""
        loop = asyncio.get_running_loop()
        for directory in self.all:
            try:
                meta = await loop.run_in_executor(
                    self._seams.threads,
                    renamed,
                    self._seams.disk,
                    directory.path,
                    directory.meta,
                    cluster_id,
                )
            except OSError as error:
                directory.resources.fail(f"writing to {directory.path} failed: {error}")
                return False
            if meta is None:
                return False
            directory.meta = meta
        return True

    async def load(self, topic_configs: ConfigCache) -> None:
        """Load all concurrently, as each has its own disk. Raises StartFailed."""
        loads = [self._loaded(directory, topic_configs) for directory in self.all]
        # All loads end before any directory is closed, also when one or the start fails.
        results = await asyncio.gather(*loads, return_exceptions=True)
        for directory, loaded in zip(list(self.all), results, strict=True):
            if isinstance(loaded, OSError):
                # Not loaded: its files stay as they are.
                self.all.remove(directory)
                directory.close()
                self._go_on_without(f"log directory {directory.path} cannot be read: {loaded}")
                continue
            if isinstance(loaded, BaseException):
                raise loaded
            _say(directory, loaded)
        self._need_one()
        self._refuse_copies()

    async def _loaded(
        self, directory: storage.LogDirectory, topic_configs: ConfigCache
    ) -> storage.Loaded:
        # In a thread: recovery may read for long, and the process must still react to signals.
        most = self._configs.num_recovery_threads_per_data_dir
        make = self._seams.recovery_helpers
        helpers = None if make is None else make(most)
        loading = asyncio.get_running_loop().run_in_executor(
            self._seams.threads, directory.load, topic_configs.at_start, helpers, most
        )
        wait_s = SAY_LOADING_AFTER_S
        try:
            while not (await asyncio.wait([loading], timeout=wait_s))[0]:
                logger.info(
                    "%(log_dir)s: %(progress)s",
                    {"log_dir": directory.path, "progress": directory.resources.loading.said()},
                )
                wait_s = SAY_LOADING_EVERY_S
        except asyncio.CancelledError:
            # The thread must not work on closed files.
            directory.abandon_load()
            await asyncio.wait([loading])
            loading.exception()
            raise
        finally:
            if helpers is not None:
                helpers.shutdown(cancel_futures=True)
        return loading.result()

    def _refuse_copies(self) -> None:
        """Refuse a replica that is in two directories: one is older, and must never lead.

        A replica of a former incarnation is quarantined where that is proved (docs/decisions/0045).
        """
        places_of: dict[TopicPartition, list[storage.LogDirectory]] = {}
        for directory in self.all:
            for key in directory.logs:
                places_of.setdefault(key, []).append(directory)
        for key, places in places_of.items():
            if len(places) < 2:
                continue
            verdict = judge(
                [FoundReplica(x, x.logs[key].metadata, x.is_unfinished(key)) for x in places]
            )
            if not verdict.kept:
                paths = " and in ".join(place.path for place in places)
                raise StartFailed(
                    f"{key} is in {paths}: it was created again in one while the other was "
                    f"missing, and which one is older is unknown; move the older folder {key} away"
                )
            for directory, what in verdict.left:
                _quarantine(directory, key, what)
            if len(verdict.kept) > 1:
                paths = " and in ".join(place.path for place in verdict.kept)
                logger.warning(
                    "%(partition)s is in %(paths)s, of different topics: the controller decides "
                    "which one is kept",
                    {"partition": key, "paths": paths},
                )


def _say(directory: storage.LogDirectory, loaded: storage.Loaded) -> None:
    """Log what the load of a directory found."""
    logger.info(
        "%(log_dir)s: %(logs)d logs, %(last_stop)s, %(bytes_checked)d bytes checked",
        {
            "log_dir": directory.path,
            "logs": loaded.logs,
            "last_stop": _BEFORE[directory.last_stop],
            "bytes_checked": loaded.recovered_bytes,
        },
    )
    for sentence in loaded.mended:
        logger.error("damaged: %s", sentence)
    for sentence in loaded.compared:
        logger.warning("%s", sentence)
    if directory.failed is not None:
        # It failed before the part existed that logs it.
        logger.error("%s is out of service: %s", directory.path, directory.failed)
    for key, why in loaded.damaged:
        logger.error("%s is out of service: %s", key, why)


def _quarantine(directory: storage.LogDirectory, key: TopicPartition, what: str) -> None:
    place = f"{directory.path}/{key}"
    try:
        if directory.failed is not None:
            raise OSError(directory.failed)
        if what == MOVED:
            # Its copy is whole: nothing of it is needed.
            directory.delete(key)
            logger.warning("%(replica)s is %(what)s: removed", {"replica": place, "what": what})
            return
        path = directory.mark_stray(key)
    except OSError as error:
        # It is not hosted any longer; the replica that replaces it records that on disk.
        if key in directory.logs:
            directory.leave(key)
        directory.resources.fail(f"{place}, {what}, cannot be quarantined: {error}")
        logger.error("%s is out of service: %s", directory.path, directory.failed)
        return
    logger.warning(
        "%(replica)s is %(what)s: kept in %(path)s",
        {"replica": place, "what": what, "path": path},
    )


def former_registration(directory: storage.LogDirectory) -> FormerRegistration:
    """Return how a directory's last process ended, as the registration reports it."""
    registration = _FORMER_REGISTRATIONS[directory.last_stop]
    if registration is FormerRegistration.UNCLEAN and directory.ran_synced:
        # With log.durability=sync no acknowledged record can be lost.
        return FormerRegistration.CRASHED
    return registration
