<?php
// Places that were released keep the address of the value that they had. Each place referred to an object of a class that is named after the kind of
// place. There are 200 of each class, or as many as the argument. Each refers to itself, so that it is garbage. Prints the names of the classes,
// then "ready".
class Garbage
{
    public $self;

    public function __construct()
    {
        $this->self = $this;
    }
}
const KINDS = ['UnsetProperty', 'NullProperty', 'DynamicProperty', 'NullElement', 'TrueElement', 'NullReference', 'StaticProperty', 'FixedArray',
    'Generator_', 'LinkedList', 'Storage', 'WeakKey', 'WeakValue', 'WeakTarget',
    'HeapValue', 'ArrayObject_', 'ClosureVariable', 'Captured', 'FunctionStatic', 'ArrayIterator_', 'Fiber_', 'FixedNull', 'NullTyped', 'ShiftList', 'FileName'];
foreach (KINDS as $kind) {
    eval("class $kind extends Garbage {}");
}
#[AllowDynamicProperties]
class Holder
{
    public $a, $place;
    public ?object $typed = null;
    public static $static;
}

define('NUMBER', (int) ($argv[1] ?? 200));
$kept = [];

function hold_property($kind, $how)
{
    global $kept;
    for ($number = 0; $number < NUMBER; $number++) {
        $holder = new Holder();
        $holder->place = new $kind();
        $how($holder);
        $kept[] = $holder;
    }
}

function generate()
{
    $item = new Generator_();
    yield 1;
    $item = null;
    yield 2;
    yield $item;
}

gc_disable();
hold_property('UnsetProperty', function ($holder) { unset($holder->place); });
hold_property('NullProperty', function ($holder) { $holder->place = null; });
for ($number = 0; $number < NUMBER; $number++) {
    $holder = new Holder();
    $holder->dynamic = new DynamicProperty();
    $holder->dynamic = null;
    $kept[] = $holder;
    $holder = new Holder();
    $holder->typed = new NullTyped();
    $holder->typed = null;
    $kept[] = $holder;

    $list = [1, new NullElement(), 'key' => 3];
    $list[1] = null;
    $kept[] = $list;
    $list = [1, new TrueElement()];
    $list[1] = true;
    $kept[] = $list;

    $value = new NullReference();
    $reference = &$value;
    $kept[] = [&$value];
    $value = null;
    unset($value, $reference);

    eval("class Static$number { public static \$place; }");
    $name = "Static$number";
    $name::$place = new StaticProperty();
    $name::$place = null;

    $array = new SplFixedArray(10);
    $array[3] = new FixedArray();
    unset($array[3]);
    $kept[] = $array;
    $array = new SplFixedArray(10);
    $array[3] = new FixedNull();
    $array[3] = null;
    $kept[] = $array;

    $generator = generate();
    $generator->current();
    $generator->next();
    $kept[] = $generator;

    $list = new SplDoublyLinkedList();
    $list->push(1);
    $list->push(new LinkedList());
    $list[1] = null;
    $kept[] = $list;
    $list = new SplQueue();
    $list->push(new ShiftList());
    $list->push(2);
    $list->shift();
    $kept[] = $list;

    $storage = new SplObjectStorage();
    $storage[$holder] = 1;
    $item = new Storage();
    $storage[$item] = new stdClass();
    unset($storage[$item]);
    $item = null;
    $kept[] = $storage;

    $map = new WeakMap();
    $map[$holder] = 1;
    $item = new WeakKey();
    $map[$item] = 2;
    unset($map[$item]);
    $item = null;
    $map[$holder] = new WeakValue();
    $map[$holder] = null;
    $kept[] = $map;

    $target = new WeakTarget();
    $kept[] = WeakReference::create($target);
    $target = null;

    $item = new HeapValue();
    $queue = new SplPriorityQueue();
    $queue->insert($item, 9);
    $queue->insert(1, 3);
    $item = null;
    $queue->extract();
    $kept[] = $queue;

    $array = new ArrayObject([1, new ArrayObject_()]);
    $array[1] = null;
    $kept[] = $array;
    $array = new ArrayIterator([1, new ArrayIterator_()]);
    $array[1] = null;
    $kept[] = $array;

    $variable = new Captured();
    $kept[] = $closure = function () use (&$variable) { return $variable; };
    $variable = null;
    unset($variable);

    $kept[] = $closure = function ($value = null) { static $held; $held = $value; };
    $closure(new ClosureVariable());
    $closure(null);

    $fiber = new Fiber(function () { $item = new Fiber_(); Fiber::suspend(1); $item = null; Fiber::suspend(2); });
    $fiber->start();
    $fiber->resume();
    $kept[] = $fiber;

    eval("function static$number(\$value) { static \$held; \$held = \$value; }");
    $name = "static$number";
    $name(new FunctionStatic());
    $name(null);
}
unset($holder, $list, $array, $generator, $storage, $map, $queue, $closure, $fiber, $item, $target, $name);
function name_files()
{
    for ($number = 0; $number < NUMBER; $number++) {
        $list = array_fill(0, 250, new FileName());  // two pages, which the next object takes
        $list = null;
        $kept[] = new SplFileInfo('some/name');
    }
    return $kept;
}
$files = name_files();
function run()
{
    sweep(100);
    finish();
}
function sweep($depth)
{
    $a = $b = $c = $d = $e = $f = $g = $h = $i = $j = $k = $l = 0;
    return $depth ? sweep($depth - 1) + max($a, $b, $c, $d, $e, $f, $g, $h, $i, $j, $k, $l) : 0;
}
function finish()
{
    echo implode(' ', KINDS), "\nready\n";
    while (true) {
        sleep(3600);
    }
}
run();
