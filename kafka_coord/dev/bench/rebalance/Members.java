// Members with Kafka's own client, several per process, like peer.py:
// java Members BOOTSTRAP GROUP TOPIC JOURNAL [SETTING=VALUE ...]
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Members {
    static final Pattern WORD = Pattern.compile("\"([^\"]*)\"");
    static final Properties settings = new Properties();
    static String topic;
    static FileChannel journal;

    /** Appends a line as journal.py reads it. On Linux, nanoTime is CLOCK_MONOTONIC. */
    static void note(String member, String what, Collection<TopicPartition> partitions) {
        String numbers = partitions.stream().map(one -> one.partition()).sorted().map(String::valueOf)
            .collect(Collectors.joining(","));
        String told = partitions.isEmpty() ? "{}" : "{\"" + topic + "\":\"" + numbers + "\"}";
        String line = "[" + System.nanoTime() + ",\"" + member + "\",\"" + what + "\"," + told + "]\n";
        try {
            journal.write(ByteBuffer.wrap(line.getBytes(StandardCharsets.US_ASCII)));
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    static class Member implements ConsumerRebalanceListener {
        final String name;
        KafkaConsumer<byte[], byte[]> consumer;
        volatile boolean leaving;
        Thread thread;

        Member(String name) {
            this.name = name;
            open();
        }

        void open() {
            Properties own = new Properties();
            own.putAll(settings);
            own.put("client.id", name);
            consumer = new KafkaConsumer<>(own, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        void join() {
            leaving = false;
            note(name, "joining", List.of());
            thread = new Thread(this::read, name);
            thread.start();
        }

        void read() {
            consumer.subscribe(List.of(topic), this);
            while (!leaving) consumer.poll(Duration.ofMillis(100));
            note(name, "leaving", List.of());
            consumer.close();
        }

        /** Whether it was a member. */
        boolean stop() throws InterruptedException {
            if (thread == null) return false;
            leaving = true;
            thread.join();
            thread = null;
            return true;
        }

        void leave() throws InterruptedException {
            if (stop()) open();
        }

        void close() throws InterruptedException {
            if (!stop()) consumer.close();
        }

        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            changed("started", partitions);
        }

        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            changed("stopped", partitions);
        }

        void changed(String what, Collection<TopicPartition> partitions) {
            if (partitions.isEmpty()) return;
            note(name, what, partitions);
            note(name, "acknowledged", List.of());
        }
    }

    public static void main(String[] args) throws Exception {
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        topic = args[2];
        journal = FileChannel.open(Path.of(args[3]), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        for (int at = 4; at < args.length; at++) {
            settings.put(args[at].substring(0, args[at].indexOf('=')), args[at].substring(args[at].indexOf('=') + 1));
        }
        Map<String, Member> members = new TreeMap<>();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String order; (order = orders.readLine()) != null; ) {
            List<String> words = WORD.matcher(order).results().map(found -> found.group(1)).collect(Collectors.toList());
            for (String name : words.subList(1, words.size())) {
                switch (words.get(0)) {
                    case "open" -> members.put(name, new Member(name));
                    case "join" -> members.get(name).join();
                    default -> members.get(name).leave();
                }
            }
            System.out.println("null");
        }
        for (Member one : members.values()) one.close();
    }
}
