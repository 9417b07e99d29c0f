// A member by Kafka's own client, of any version from 2.4 on: java -cp CLASSES:JARS Member BOOTSTRAP TOPIC GROUP NAME
// [STRATEGY [INSTANCE_ID]].
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.AppInfoParser;

public class Member {
    static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    public static void main(String[] args) throws Exception {
        say("# kafka-clients " + AppInfoParser.getVersion());
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[2]);
        settings.put("client.id", args[3]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        String strategy = args.length > 4 ? args[4] : "range";
        if (strategy.equals("kip-848")) {
            settings.put("group.protocol", "consumer");
        } else {
            settings.put("session.timeout.ms", "6000");
            settings.put("heartbeat.interval.ms", "1500");
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer."
                + Map.of("range", "RangeAssignor", "cooperative-sticky", "CooperativeStickyAssignor").get(strategy));
        }
        if (args.length > 5) settings.put("group.instance.id", args[5]);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        AtomicBoolean stopping = new AtomicBoolean();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            Thread ending = new Thread(() -> {
                try {
                    while (System.in.read() >= 0) { }
                } catch (java.io.IOException closed) { }
                stopping.set(true);
                consumer.wakeup();
            });
            ending.setDaemon(true);
            ending.start();
            consumer.subscribe(List.of(args[1]));
            Set<TopicPartition> known = null;
            while (!stopping.get()) {
                try {
                    ConsumerRecords<byte[], byte[]> found = consumer.poll(Duration.ofMillis(200));
                    Set<TopicPartition> held = new HashSet<>(consumer.assignment());
                    if (!held.equals(known)) {
                        known = held;
                        say("assigned " + held.stream().map(one -> "" + one.partition()).collect(Collectors.joining(",")));
                    }
                    for (ConsumerRecord<byte[], byte[]> one : found) say("record " + one.partition() + " " + one.offset());
                    if (found.count() == 0) continue;
                    consumer.commitSync();
                    say("committed");
                } catch (WakeupException asked) {
                    if (!stopping.get()) throw asked;
                } catch (CommitFailedException | org.apache.kafka.common.errors.RetriableException
                    | org.apache.kafka.common.errors.RebalanceInProgressException error) {
                    say("# " + error);
                }
            }
        }
        say("closed");
    }
}
