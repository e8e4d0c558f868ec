# Keeps results of queries to a PostgreSQL server, as a program does that caches them or forgets to clear them; prints how many they are and
# the sum of PQresultMemorySize as pg_shim.c saw it, and how far malloc_increase rose meanwhile; then waits.
require "fiddle"
require "pg"

pause, port, count, bytes = ARGV
connection = PG.connect(host: "127.0.0.1", port: port, user: "postgres", dbname: "postgres")
connection.exec("SELECT 1").clear
GC.start
GC.disable
total = Fiddle::Pointer.new(Fiddle::Handle::DEFAULT["pg_true_size"])
before = total[0, 8].unpack1("Q")
increase = GC.stat(:malloc_increase_bytes)
$results = Array.new(count.to_i) { |number| connection.exec("SELECT repeat('x', #{bytes}) AS text, #{number} AS number") }
increase = GC.stat(:malloc_increase_bytes) - increase
puts "results=#{$results.size} bytes=#{total[0, 8].unpack1('Q') - before} increase=#{increase}"
connection.exec("SELECT 2").clear # so that libpq and the stack keep nothing of the last one
puts "ready"
$stdout.flush
File.open(pause, "r+").read(1)
