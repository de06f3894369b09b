"""The watcher: a process beside the cameras that finds faces, follows people, and tells the service about them.

`camera` reads frames, `looks` finds faces in them, `tracker` follows people, `reporter` tells the service, `watch`
composes them. It is a client of the service like any other.
"""
