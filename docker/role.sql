-- Gives the service a role of its own, which owns its tables and may do nothing else. Run by the database's superuser at
-- every `up`: it also takes over the tables of earlier versions, which used the superuser itself.
\set ON_ERROR_STOP on
\set password `cat "$SERVICE_PASSWORD_FILE"`
SET log_min_error_statement = panic;  -- a statement that failed would be logged with the password
SET lock_timeout = '30s';

SELECT 'CREATE ROLE likeness_service'
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'likeness_service') \gexec

-- 40 connections of a replica's pool and one for its lock: six replicas. docker-compose.yml has max_connections.
ALTER ROLE likeness_service LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS
    CONNECTION LIMIT 250 PASSWORD :'password';

REVOKE ALL ON DATABASE :"DBNAME" FROM PUBLIC;
GRANT CONNECT, TEMPORARY ON DATABASE :"DBNAME" TO likeness_service;  -- `likeness doctor` tries to write into a temporary table
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO likeness_service;

SELECT format('ALTER TABLE %I.%I OWNER TO likeness_service', schemaname, tablename)
FROM pg_tables WHERE schemaname = 'public' AND tableowner <> 'likeness_service' \gexec
