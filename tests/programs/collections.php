<?php
// A Registry keeps values in each kind of PHP's collections. Prints the name of each property, its class and the number of its elements, then "ready".
class Registry
{
    public $seen, $weak, $fixed, $list, $queue, $order, $heap;
    public $kept = [];

    public function __construct()
    {
        [$this->seen, $this->weak, $this->fixed] = [new SplObjectStorage(), new WeakMap(), new SplFixedArray(100)];
        [$this->list, $this->queue] = [new ArrayObject(), new SplQueue()];
        [$this->order, $this->heap] = [new SplPriorityQueue(), new SplMinHeap()];
    }

    public function add($number)
    {
        $text = fn ($name) => str_repeat("$name $number ", 20 + $number % 7);
        $this->kept[] = $key = new stdClass();
        $this->seen[new ArrayObject([$text('seen')])] = $number;
        $this->weak[$key] = $text('weak');
        $this->fixed[$number % 100] = $text('fixed');
        $this->list[] = $text('list');
        $this->queue[] = $text('queue');
        $this->order->insert($text('order'), $number);
        $this->heap->insert($text('heap'));
    }
}

$registry = new Registry();
for ($number = 0; $number < 300; $number++) {
    $registry->add($number);
}
foreach ($registry as $name => $value) {
    echo "$name ", is_array($value) ? 'array' : get_class($value), ' ', count($value), "\n";
}
unset($value);
echo "ready\n";
while (true) {
    sleep(3600);
}
