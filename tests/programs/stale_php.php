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

eval('class Forty { public $a' . implode(', $a', range(1, 40)) . '; }'); // 680 bytes; its block has 768, as that of Forty1
eval('class Forty1 extends Forty { public $b; }');

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

    $list = [];
    for ($place = 0; $place < 128; $place++) { // the last places of its elements refer to Items
        $list[] = $place < 100 ? 1 : new Item();
    }
    unset($list);
    $list = [];
    for ($place = 0; $place < 70; $place++) {
        $list[] = $place;
    }
    $lists[] = $list;
    unset($list);
    $object = new Forty1();
    $object->b = new Item();
    unset($object);
    $objects[] = new Forty();
}
echo 38 * 300, "\n";
echo "ready\n";
while (true) {
    sleep(3600);
}
