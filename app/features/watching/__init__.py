"""Watching cameras: sightings, events and strangers in the service, and the watcher beside the cameras.

Off unless `LIKENESS_WATCHING` is `on`: otherwise the service imports only `feature`.

`service` decides whom a track's photos show, `store` keeps the sighting, `events` writes what happened, `webhooks` and
`mqtt` send the events, `strangers` groups unknown people. `watcher` runs in a process of its own.
"""
