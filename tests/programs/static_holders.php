<?php
// A class with static functions only, static variables of functions and methods, arrays inside small arrays, a constant, and an SplObjectStorage of which
// the keys are small numbers keep texts. Two global variables keep objects of classes that have a static property. Prints each variable as
// findleaks names it and the number of its elements, separated by a tab, then "ready".
class Repository
{
    private static array $cache = [];
    private static array $byKind = ['few' => [1, 2]];

    public static function get($number)
    {
        return self::$cache["key $number"] ??= str_repeat("cached $number ", 20);
    }

    public static function file($number)
    {
        self::$byKind['orders'][] = str_repeat("order $number ", 20);
    }

    public static function note($number)
    {
        static $noted = [];
        $noted[] = str_repeat("noted $number ", 20);
    }
}

class Member
{
    public static ?SplObjectStorage $every = null;
    private $text;

    public function __construct($number)
    {
        $this->text = str_repeat("member $number ", 20);
    }
}

class Document extends SplFileInfo
{
    public static $texts = [];
}

class Dispatcher
{
    private $listeners = [];

    public function on($event, $listener)
    {
        $this->listeners[$event]['late'][] = $listener;
    }
}

function listen(Dispatcher $dispatcher, $number)
{
    static $seen = [], $last = null;
    $text = str_repeat("text $number ", 20);
    $dispatcher->on('save', function () use ($text) {
        return $text;
    });
    $seen["number $number"] = $last = str_repeat("seen $number ", 20);
}
define('KEPT', array_map(fn ($number) => str_repeat("constant $number ", 20), range(1, 150)));
Member::$every = new SplObjectStorage();
for ($number = 0; $number < 250; $number++) {
    Member::$every->attach(new Member($number));
}
$others = [];
for ($number = 0; $number < 100; $number++) {
    $others[] = new Member($number);
}
$documents = [];
for ($number = 0; $number < 220; $number++) {
    Document::$texts[] = str_repeat("document $number ", 20);
    $documents[$number % 100] = new Document(__FILE__);
}
$dispatcher = new Dispatcher();
for ($number = 0; $number < 500; $number++) {
    $number < 300 && Repository::get($number);
    $number < 400 && Repository::file($number);
    $number < 200 && Repository::note($number);
    listen($dispatcher, $number);
}
foreach (['Repository::$cache' => 300, 'Repository::$byKind[\'orders\']' => 400, 'static $noted in Repository::note()' => 200, 'Member::$every' => 250, 'Document::$texts' => 220] as $name => $count) {
    echo "$name\t$count\n";
}
echo "Dispatcher->listeners['save']['late']\t500\nstatic \$seen in listen()\t500\nconstant KEPT\t150\nready\n";
while (true) {
    sleep(3600);
}
