<?php
// Allocates small, large and huge blocks of Zend's memory manager. A table refers to some, others are lost or freed. Prints a line "held SIZE ADDRESS",
// "lost …" or "freed …" for each, then "usage" with the four figures of memory_get_usage and memory_get_peak_usage, then "ready".
$c = FFI::cdef('void *_emalloc(size_t size); void _efree(void *block); size_t _zend_mem_block_size(void *block);');
$table = FFI::new('void *[512]');

function made($c, $kind, $size)
{
    $block = $c->_emalloc($size);
    FFI::memset($block, 99, $c->_zend_mem_block_size($block)); // to the end: pages may have links of former free lists
    printf("%s %d 0x%x\n", $kind, $c->_zend_mem_block_size($block), FFI::cast('uintptr_t *', FFI::addr($block))[0]);
    return $block;
}

function make($c, $table)
{
    $sizes = [1, 8, 9, 24, 31, 40, 48, 56, 64, 65, 96, 112, 128, 129, 192, 224, 256, 300, 384, 400, 512, 640, 700, 896, 1024, 1200, 1536, 1792,
        2048, 2049, 3072, 3073, 4096, 10000, 262144, 1 << 20, 3 << 20];
    $freed = [];
    $number = 0;
    for ($round = 0; $round < 10; $round++) {
        foreach ($sizes as $size) {
            if ($size > 5000 && $round > 1) {
                continue;
            }
            $table[$number++] = made($c, 'held', $size);
            made($c, 'lost', $size);
            $freed[] = made($c, 'freed', $size);
        }
    }
    foreach (array_reverse($freed) as $block) {
        $c->_efree($block);
    }
}

function sweep($depth)
{
    $a = $b = $d = $e = $f = $g = $h = $i = $j = $k = $l = 0;
    return $depth ? sweep($depth - 1) + max($a, $b, $d, $e, $f, $g, $h, $i, $j, $k, $l) : 0;
}

make($c, $table);
sweep(100);
printf("usage %d %d %d %d\n", memory_get_usage(), memory_get_usage(true), memory_get_peak_usage(), memory_get_peak_usage(true));
echo "ready\n";
while (true) {
    sleep(3600);
}
