<?php
// Two properties of an object refer to the same sessions. The argument is their number.
class Session {
    public $number, $data;
    function __construct($number) { $this->number = $number; $this->data = str_repeat("x", 500) . $number; }
}

class Registry {
    public $byId = [], $recent = [];
    function add($number) {
        $session = new Session($number);
        $this->byId[$number] = $session;
        $this->recent[] = $session;
    }
}

$registry = new Registry();
for ($number = 0; $number < (int) $argv[1]; $number++) {
    $registry->add($number);
}
echo "ready\n";
sleep(3600);
