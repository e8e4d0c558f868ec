import java.io.File;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.netbeans.lib.profiler.heap.GCRoot;
import org.netbeans.lib.profiler.heap.Heap;
import org.netbeans.lib.profiler.heap.HeapFactory;
import org.netbeans.lib.profiler.heap.Instance;
import org.netbeans.lib.profiler.heap.JavaClass;
import org.netbeans.lib.profiler.heap.JavaFrameGCRoot;

/** Reads a heap dump with the library of NetBeans and VisualVM, and prints the classes, the roots, and JavaHeap's objects. */
public class HeapDumpReader {
    public static void main(String[] words) throws Exception {
        Heap heap = HeapFactory.createHeap(new File(words[0]));
        for (Object each : heap.getAllClasses()) {
            JavaClass one = (JavaClass) each;
            System.out.println("class " + one.getInstancesCount() + " " + one.getName());
        }
        int roots = 0;
        for (Object each : heap.getGCRoots()) {
            if (((GCRoot) each).getInstance() == null) System.out.println("missing root");
            roots++;
        }
        System.out.println("roots " + roots);
        printRoots(heap);
        if (heap.getJavaClassByName("JavaHeap") == null) return;
        Instance node = (Instance) heap.getJavaClassByName("JavaHeap").getValueOfStaticField("kept");
        int length = 0;
        for (; node != null; node = (Instance) node.getValueOfField("next")) length++;
        System.out.println("list " + length);
        print(heap, "JavaHeap$Kept");
        print(heap, "JavaHeap$Weak");
        print(heap, "java.lang.Thread");
    }

    /** Print the number of roots by class of the thread ("-" if the root is not in a Java frame), class of the object, and kind of root. */
    static void printRoots(Heap heap) {
        Map<String, Integer> counts = new TreeMap<>();
        for (Object each : heap.getGCRoots()) {
            GCRoot root = (GCRoot) each;
            String thread = root instanceof JavaFrameGCRoot ? nameOfClass(((JavaFrameGCRoot) root).getThreadGCRoot()) : "-";
            counts.merge(thread + " " + nameOfClass(root) + " " + root.getKind(), 1, Integer::sum);
        }
        for (Map.Entry<String, Integer> each : counts.entrySet()) System.out.println("root " + each.getValue() + " " + each.getKey());
    }

    static String nameOfClass(GCRoot root) {
        return root == null || root.getInstance() == null ? "none" : root.getInstance().getJavaClass().getName();
    }

    /** Print of how many instances of a class the library finds a path from a root, and their retained bytes. */
    static void print(Heap heap, String name) {
        JavaClass one = heap.getJavaClassByName(name);
        int reached = 0;
        for (Object each : (List<?>) one.getInstances()) {
            Instance instance = (Instance) each;
            if (instance.isGCRoot() || instance.getNearestGCRootPointer() != null) reached++;
        }
        System.out.println("reached " + reached + " " + one.getRetainedSizeByClass() + " " + name);
    }
}
