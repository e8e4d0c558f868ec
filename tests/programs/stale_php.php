<?php
// Blocks of arrays and objects are freed while they refer to an Item, and are used again for smaller arrays and objects, which are kept. Each
// Item refers to itself, so that it is garbage. Prints the number of Items, then "ready".
class Item
{
    public $self;

    public function __construct()
    {
        $this->self = $this;
    }
}

class Six // 136 bytes; its block has 160, as that of Seven
{
    public $a = 1, $b = 2, $c = 3, $d = 4, $e = 5, $f = 6;
}

class Seven extends Six
{
    public $g;
}

gc_disable();
$lists = $objects = [];
for ($number = 0; $number < 300; $number++) {
    $list = [];
    for ($place = 0; $place < 8; $place++) {
        $list[] = new Item();
    }
    unset($list);
    $list = [];
    $list[] = $number;
    $lists[] = $list;
    unset($list);
    $object = new Seven();
    $object->g = new Item();
    unset($object);
    $objects[] = new Six();
}
echo 9 * 300, "\n";
echo "ready\n";
while (true) {
    sleep(3600);
}
