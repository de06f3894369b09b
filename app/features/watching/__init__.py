"""Watching cameras: sightings, events and strangers in the service, and the watcher beside the cameras.

Off unless `LIKENESS_WATCHING` is `on`; before that the service imports nothing but `feature`, and no command does.

`service` decides about a track by its photos, `store` keeps the sighting, `events` says what happened, `webhooks` and
`mqtt` send it out, `strangers` groups the unknown. `watcher` is another process.
"""
