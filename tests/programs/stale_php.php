<?php
// Blocks of arrays and objects are freed while they refer to an Item, and are used again for smaller arrays and objects, which are kept. Elements
// of other arrays are deleted, which refer to an Item. Each Item refers to itself, so that it is garbage. Prints the number of Items, the number of
// Items that were in deleted elements, and that of kept objects of each class, then "ready".
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

eval('class Seventeen { public $a' . implode(', $a', range(1, 17)) . '; }'); // 312 bytes; its block has 320, as that of a generator

function numbers()
{
    yield 1;
}

// Append an array that has a block of the same size as the one of an array that is freed. Of the other array, all places but the first
// $numbers refer to Items.
function reuse_array(&$lists, $numbers, $places, $kept)
{
    $list = [];
    for ($place = 0; $place < $places; $place++) {
        $list[] = $place < $numbers ? 1 : new Item();
    }
    unset($list);
    $list = [];
    for ($place = 0; $place < $kept; $place++) {
        $list[] = $place;
    }
    $lists[] = $list;
}

// Append an object that has a block of the same size as an object that is freed. The last property of the other object refers to an Item.
function reuse_object(&$objects, $larger, $last, $kept)
{
    $object = new $larger();
    $object->$last = new Item();
    unset($object);
    $objects[] = new $kept();
}

// Append an array without keys, or with keys, of which only the element $kept of $places has not been deleted.
function delete_elements(&$lists, $prefix, $places, $kept)
{
    $list = [];
    for ($place = 0; $place < $places; $place++) {
        $list[$prefix === null ? $place : $prefix . $place] = $place === $kept ? $place : new Item();
    }
    for ($place = 0; $place < $places; $place++) {
        if ($place !== $kept) {
            unset($list[$prefix === null ? $place : $prefix . $place]);
        }
    }
    $lists[] = $list;
    return $places - 1;
}

gc_disable();
$lists = $objects = [];
$deleted = 0;
for ($number = 0; $number < 300; $number++) {
    reuse_array($lists, 0, 8, 1);
    reuse_object($objects, 'Seven', 'g', 'Six');
    reuse_array($lists, 100, 128, 70);
    reuse_object($objects, 'Forty1', 'b', 'Forty');
    $wide = new Seventeen();
    $wide->a17 = new Item();
    unset($wide);
    $objects[] = numbers();
}
foreach ([null, 'key'] as $prefix) {
    for ($number = 0; $number < 100; $number++) {
        $deleted += delete_elements($lists, $prefix, 8, 7) + delete_elements($lists, $prefix, 100, 50);
    }
    $deleted += delete_elements($lists, $prefix, 100000, 99999); // has mappings of its own
}
echo 39 * 300 + $deleted, ' ', $deleted, " 300\n";
echo "ready\n";
while (true) {
    sleep(3600);
}
