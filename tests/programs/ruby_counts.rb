# Makes some objects, prints the interpreter's counters, and sleeps.
$kept = []
300.times { |number| $kept << "long enough to be elsewhere, surely #{number}" << [number] * 40 << { number => 1 } }
GC.start
statistics, objects = {}, {}
GC.disable
4.times { GC.stat(statistics) and ObjectSpace.count_objects(objects) } # the first calls allocate
$stdout.sync = true
$stdout.puts [statistics, objects].map { |counts| counts.map { |name, count| "#{name}=#{count}" }.join(" ") }, "ready"
sleep
