"""Add and remove model packages over REST. Each is added by a job whose child process runs the commands of
`app.models`."""
