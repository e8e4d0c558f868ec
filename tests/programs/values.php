<?php
// Values of PHP: a list keeps 300 Orders, and 200 pairs of Orders that refer to each other are dropped while the collector is off. Prints
// "usage" with the four figures of memory_get_usage and memory_get_peak_usage, then "ready".
class Order
{
    public $lines;
    public ?Order $next = null;

    public function __construct(public int $number)
    {
        $this->lines = ["first $number", "second $number", $number];
    }

    public function total(): ?Order // nothing refers to the description of its result
    {
        return $this->next;
    }
}

final class Book
{
    public static array $kept = [];
    private $entries = [];
    private SplObjectStorage $shelves;

    public function add(Order $order): void
    {
        $this->entries['number ' . $order->number] = $order;
        $this->shelves ??= new SplObjectStorage();
    }
}

gc_disable();
$book = new Book();
for ($number = 0; $number < 300; $number++) {
    $book->add(new Order($number));
}
for ($number = 0; $number < 100; $number++) {
    Book::$kept[] = [$number, (object) ['name' => "kept $number" . str_repeat(' ', 2000)]];
}
$numbers = [];
for ($number = 0; $number < 80; $number++) {
    $numbers[] = "number $number" . str_repeat(' ', 2000);
}
function drop()
{
    for ($number = 0; $number < 200; $number++) {
        $one = new Order($number);
        $other = new Order($number);
        [$one->next, $other->next] = [$other, $one];
    }
}
function sweep($depth)
{
    $a = $b = $c = $d = $e = $f = $g = $h = $i = $j = $k = $l = 0;
    return $depth ? sweep($depth - 1) + max($a, $b, $c, $d, $e, $f, $g, $h, $i, $j, $k, $l) : 0;
}
if (($argv[1] ?? '') === 'drop') {
    drop();
}
sweep(100);
printf("usage %d %d %d %d\n", memory_get_usage(), memory_get_usage(true), memory_get_peak_usage(), memory_get_peak_usage(true));
echo "ready\n";
while (true) {
    sleep(3600);
}
