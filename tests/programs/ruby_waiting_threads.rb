# A server that starts a thread for each connection, and whose clients never close theirs: each thread waits for a request that never comes.
# The first argument is the number of threads.
class Connection
  def initialize
    @requests = Queue.new
  end

  def serve
    line = @requests.pop
    line.upcase
  end
end

$connections = Array.new(ARGV[0].to_i) { Connection.new }
threads = $connections.map { |connection| Thread.new { connection.serve } }
sleep 0.01 until threads.all? { |thread| thread.status == "sleep" }
puts "ready"
$stdout.flush
sleep
