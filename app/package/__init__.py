"""Model packages: manifest, golden vectors, folder, operating points.

The service and training both import it. It imports from them only basic modules such as `app.errors`.
"""
