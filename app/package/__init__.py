"""What a model package is: its manifest, its golden vectors, its folder, its operating points.

The service and training both import it. It imports nothing of either but the words at the bottom, such as `app.errors`.
"""
